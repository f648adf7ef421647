"""The directories of epochs: their creation, removal and markers, for every engine."""
