"""What a head is worth: how sure it is, how the loss leans on it, what its removal costs."""
