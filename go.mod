module github.com/holdfast-run/holdfast

go 1.26
