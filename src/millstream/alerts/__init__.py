"""Alerts: rules on metrics, messages that are kept until they are sent, and where they are sent to.

`rules` decides, `outbox` keeps, `sender` sends, `targets` knows how, and `settings` reads the file of the supervisor.
"""
