"""The web console that `millstream up` serves: pages over the supervisor's HTTP interface, which they only speak."""
