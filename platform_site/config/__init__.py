"""Environment configuration as one document: schema, functions, webhooks, sign-in and origins, without secrets.
`comparison` plans, `stored_plans` stores, `merge` makes the document from another environment, `apply` applies it by
the services of the apps."""
