"""`python -m finch_gateway.cli` is `finch-gateway`."""

from . import main

if __name__ == "__main__":
    main(prog_name="finch-gateway")
