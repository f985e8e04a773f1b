"""Options of each verb. A module here imports only what its parser needs, so that help and completion are quick."""
