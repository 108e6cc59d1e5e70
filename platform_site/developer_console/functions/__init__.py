"""Functions: the list, the editor with its test run, versions, runs, and settings. Depends on the frame and the API."""
