"""What Python users and the command line share: plan, run, profile, look at the cluster; a file a verb, and what they
have in common. Prints nothing but progress. Imports nothing, so that `dovetail --help` need not load it all."""
