"""The engines that store epochs, and how they are found."""
