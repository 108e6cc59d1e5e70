"""The parts of a document by database, and the services that change them."""
