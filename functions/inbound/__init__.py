"""Inbound addresses: how a provider's webhooks (Stripe, GitHub, Slack …) reach a function.

Providers send no header of ours, and their signatures are over the raw body. So an address is a secret in itself: its
token names the environment, in which its hash leads to the function. `tokens` is the token's form, `records` the row
and what is remembered of it, `services` the verbs of its owner, `arrivals` who comes by it and as whom they run,
`messages` what the function is told of a request. docs/reference/functions.md, "Inbound endpoints".
"""
