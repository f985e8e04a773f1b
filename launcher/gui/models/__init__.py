"""The Models page: the files on this computer, and those to be downloaded."""
