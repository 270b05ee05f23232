"""What draft heads rank first, and what the target thinks of it: the JetSpec paper's appendices A and G."""
