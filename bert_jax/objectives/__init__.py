"""One file per objective: what is fed, what is learned, what is lost."""
