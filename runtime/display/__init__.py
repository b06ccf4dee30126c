"""What people read: text of others in a terminal, HTML pages, the help of command lines."""
