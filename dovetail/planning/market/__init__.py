"""What to rent when prices change and spot devices are reclaimed: a pure function of prices until now and of what is
left.

`outlook` reads a history: what each offer cost, how long spot stays and stays away, how long a difference in price
lasts. `value_table` weighs waiting, spot and on demand by what they lead to, `deciding` chooses an offer for the
coming moment, `replay` plays any rule over a history, and `renting` makes the plan. A controller asks
`deciding.decide_now`.
"""
