"""The configuration: one TOML file, the environment over it, and every problem reported at once."""

from .load import CONFIG_FILE, CONFIG_VARIABLE, Reading, in_order, load, read
from .settings import (
    BackendSettings,
    Config,
    CredentialSettings,
    ListingSettings,
    OutboundSettings,
    PathSettings,
    ServerSettings,
    Shown,
    StoreSettings,
)

__all__ = [
    "CONFIG_FILE",
    "CONFIG_VARIABLE",
    "BackendSettings",
    "Config",
    "CredentialSettings",
    "ListingSettings",
    "OutboundSettings",
    "PathSettings",
    "Reading",
    "ServerSettings",
    "Shown",
    "StoreSettings",
    "in_order",
    "load",
    "read",
]
