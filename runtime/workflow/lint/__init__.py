"""What is wrong with a workflow before it runs anywhere. `findings` asks all the others."""
