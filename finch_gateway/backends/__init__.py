"""One module per way of reaching an agent; each is an implementation of `finch_gateway.backend.Backend`."""
