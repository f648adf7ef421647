"""The steps that every request takes before and after its route."""
