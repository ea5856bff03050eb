"""Webhooks: signed requests that are repeated until they are accepted. Bridges and alerts send them."""
