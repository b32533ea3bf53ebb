"""What is known of TPUs."""
