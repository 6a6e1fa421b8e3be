"""What few need: it comes with vidssl, and is loaded when it is named. The rest of vidssl does not import it."""
