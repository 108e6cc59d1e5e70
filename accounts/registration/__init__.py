"""The life of an account, from signing up to deleting it, and the e-mails that go with it.

    models          what a pool allows (PoolSettings); e-mails written down before they are sent (AccountEmail)
    pools           which users a request means, and how people come into that pool
    outbox          writing e-mails down and sending them: claims, leases, retries
    letters         what an e-mail says: templates, subjects, the address of its link
    links           one-use links: the token's form, what it opens, using it up
    sign_up         asking for an account, and proving the address
    invitations     inviting somebody, accepting
    recovery        a forgotten password
    oneself         what people change of their own account: address, password, the end of it
    views, serializers, urls    the API's doors; `pages` the browser's

A request of a stranger only writes down what was asked; a worker looks up afterwards who that concerns, so that
neither the answer nor its time tells whether an account exists (threat T7). docs/reference/sign-in.md.
"""
