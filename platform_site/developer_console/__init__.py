"""The console for members of projects: `/console`. It imports every app; only `platform_site.urls` imports it. Pages
read and change everything through the API: `Console.api` calls an operation of `/v1` in this process with an access
token of the signed-in account (`api_calls`), so that permissions, validation, audit and events are the API's. To add a
section: write a module with functions decorated by `frame.page`, name the first one in `frame.SECTIONS` and add its
paths to `urls`. A page gets a `Console` and returns `console.render("console/<name>.html", {...})`; the template
extends `console/base.html`. A form posts to the URL of its page; with `hx-post` only `main` is replaced. Catch
`Refused` around a change and show it next to the form (`console/problem.html`); a `Refused` that a page does not catch
becomes an error page. Scripts go into static files: the content security policy allows no inline code."""
