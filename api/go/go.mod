module github.com/fide-project/fide/api/go

go 1.23
