"""What is done with models that are trained: answering fast, asking them why, and choosing among them."""
