"""What people read: other people's text in a terminal, HTML pages, the help of command lines."""
