"""The Schema section: one draft of the document, edited by forms or as JSON, its plan, and the history."""
