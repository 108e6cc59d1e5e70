"""Tables: rows to see, edit, download, upload and watch. Depends on the frame and the API."""
