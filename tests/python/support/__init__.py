"""Problems, reference answers and servers that the tests share."""
