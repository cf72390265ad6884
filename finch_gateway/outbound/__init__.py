"""What leaves by itself: callbacks from the outbox."""
