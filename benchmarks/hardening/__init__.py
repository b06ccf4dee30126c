"""What `make accept-hardening` prints, a module for each part."""
