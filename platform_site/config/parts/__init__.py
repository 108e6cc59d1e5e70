"""The two parts of a document, by the database that stores them, and the services of the apps that change them."""
