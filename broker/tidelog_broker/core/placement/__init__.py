"""Where copies belong: placement, plans of epochs, the registry of nodes."""
