"""Training of draft heads in four stages: data, features, fit, export."""
