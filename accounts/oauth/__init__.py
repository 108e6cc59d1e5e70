"""Sign-in by other providers: the platform is their client, and hands out codes to applications.

    redirects    which addresses an application may be sent back to, and the addresses that carry a code or an error
    providers    identity providers: adding, changing, removing them; presets
    transport    Authlib's protocol over the guarded HTTP client, bounded in time, bytes and number
    metadata     discovery documents and key sets, remembered for a while
    claims       what a provider says of a person: ID tokens checked, plain profiles mapped
    flows        what one sign-in remembers between leaving and coming back, sealed in a cookie of its browser
    identities   whose account a person at a provider is: linking, creating, refusing
    codes        one-time codes: issued at the end of a flow, exchanged once at the token endpoint
    views        the addresses; `pages` what people see there

One flow: `views` validates the request by `redirects` and begins a flow, the provider sends the browser back,
`claims` makes a Profile of its answer, `identities` a user of the profile, `codes` a code for the application.
docs/reference/sign-in.md; design section 4, "OAuth code"; threat T16.
"""
