"""Environment configuration: schema, functions, webhooks, sign-in and origins of an environment as one document. Above
the apps whose settings it reads and changes. Secrets are never part of a document. `comparison` plans, `plans` stores,
`merge` makes the document of a plan from another environment. `apply` applies: `parts` call the services of the
apps."""
