"""The stores that keep what `finch_gateway.store` promises: `sqlite` on one machine, `redis` over instances."""
