"""What train_lm.py and train_images.py have in common."""
