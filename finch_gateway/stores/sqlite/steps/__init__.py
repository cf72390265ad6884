"""What each call does to the tables: functions of a connection and values, run inside somebody else's transaction.

A step may run twice when a batch starts over, so it keeps nothing outside the database. One module per part of
the contract in `finch_gateway.store`; `rows` is what they share.
"""
