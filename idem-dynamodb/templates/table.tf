# Table of idem-dynamodb, and the rights that a service needs.

variable "table_name" {
  type    = string
  default = "idem"
}

resource "aws_dynamodb_table" "idem" {
  name         = var.table_name
  billing_mode = "PAY_PER_REQUEST"
  hash_key     = "pk"
  range_key    = "sk"

  attribute {
    name = "pk"
    type = "B"
  }

  attribute {
    name = "sk"
    type = "S"
  }

  attribute {
    name = "g"
    type = "S"
  }

  attribute {
    name = "ro"
    type = "S"
  }

  attribute {
    name = "rd"
    type = "N"
  }

  global_secondary_index {
    name            = "open"
    hash_key        = "g"
    range_key       = "pk"
    projection_type = "KEYS_ONLY"
  }

  global_secondary_index {
    name            = "recovery"
    hash_key        = "ro"
    range_key       = "rd"
    projection_type = "KEYS_ONLY"
  }

  ttl {
    attribute_name = "ttl"
    enabled        = true
  }

  lifecycle {
    prevent_destroy = true
  }
}

data "aws_iam_policy_document" "idem" {
  statement {
    actions = [
      "dynamodb:BatchGetItem",
      "dynamodb:DeleteItem",
      "dynamodb:GetItem",
      "dynamodb:PutItem",
      "dynamodb:Query",
      "dynamodb:Scan",
      "dynamodb:UpdateItem",
    ]
    resources = [
      aws_dynamodb_table.idem.arn,
      "${aws_dynamodb_table.idem.arn}/index/*",
    ]
  }
}
