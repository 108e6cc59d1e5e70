"""The console for members of projects: `/console`. It imports every app; only `platform_site.urls` imports it. Pages
call operations of `/v1` in this process by `Console.api`, with an access token of the account (`api_calls`). To add a
section: functions with `frame.page` that return `console.render("console/<name>.html", {...})`, an entry in
`frame.SECTIONS`, and paths in `urls`. Forms post to their page (`hx-post` replaces `main`) and name one of its
`actions` by `action`; a refused one is shown by `console/problem.html`. The content security policy allows no inline
code."""
