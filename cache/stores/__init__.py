"""The stores of answers: in this process (`memory`), and in Redis or Valkey (`shared`)."""
