"""The server bridge: from Granian's event loop (RSGI) to Django's ordinary handler, and back.

    bridge      the application Granian calls: reads the body under a deadline, answers /healthz, hands over, sends
    incoming    the HttpRequest that Django sees, made from RSGI's scope; who the client is behind trusted proxies
    lane        the elastic line of threads in which Django runs: one at work, others join only while it is stuck
    outgoing    Django's response as bytes, file or stream
    worker      one worker process, between Granian's runtime and the bridge
    serve       Granian's main process: sockets, respawning, reload (`manage.py serve`, and `up` through it)

Why not plain WSGI: four clients that stall inside a body would hold four workers, and threads that run Python side by
side fight for the interpreter lock. Measured in docs/explanation/performance.md.
"""
