"""Who learns: objective, GAE, critic, packing, updates, supervised fine-tuning."""
