"""From pop to settle: what is handed out, held back, acked, retried, cancelled or moved."""
