"""Training of draft heads: data, fit, export."""
