"""What the gateway is measured against; each module has `build(folder, store_port) -> ASGI app`."""
