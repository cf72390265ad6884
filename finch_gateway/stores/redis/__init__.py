"""The store for several instances: Redis 6.2 or newer, or Valkey."""

from .connection import Limits
from .store import RedisStore

__all__ = ["Limits", "RedisStore"]
